"""The live terminal view: FarmView as rich renderables."""
