"""The policies. Import the modules by name: vLLM finds its worker so, and nothing else is loaded."""
