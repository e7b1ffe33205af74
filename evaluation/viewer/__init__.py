"""The page of `medagent view`: what a run did, rollout by rollout and token by token."""
