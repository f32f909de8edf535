"""Pictures by matplotlib, the colours that all pictures share, and the places of samples on maps."""
