"""What every package may need: files written whole, free memory, devices, optional packages, where warnings point."""
