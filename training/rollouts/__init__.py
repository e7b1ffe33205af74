"""Collecting rollouts, those that wait for their update, and questions that are made harder on purpose."""
