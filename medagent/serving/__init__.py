"""The agent in front of people and programs: `medagent serve`."""
