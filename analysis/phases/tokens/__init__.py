"""Tokens, requests and KV lengths of steps: from markers, launch geometry and input copies."""
