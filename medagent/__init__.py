"""The agent: records, protocol, policies, the one rollout loop, command line."""
