"""Engines sample a policy's turns for the trainer, the server and evaluation."""
