"""KV-cache lengths of requests, step by step."""
