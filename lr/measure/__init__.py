"""Evaluation: answers and how they are graded."""
