#!/usr/bin/env python3
"""Counts the words and lines of the text on the standard input."""
import json
import sys

text = sys.stdin.read()
print(json.dumps({"words": len(text.split()), "lines": len(text.splitlines())}))
