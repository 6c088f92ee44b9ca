"""The commands of `lr`, one file each. Only here, and in `cli.py`, is anything
printed."""
