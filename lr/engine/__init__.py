"""Drivers: what runs the algorithms on models."""
