"""What every other package may need: files written whole, free memory, devices, optional packages."""
