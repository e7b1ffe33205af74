"""Rollouts that wait for their update, and questions that are made harder on purpose."""
