#!/usr/bin/env python3
"""<<.Title>>: a tool server with one tool, in the standard library alone.

It speaks the Model Context Protocol over stdin and stdout, one JSON message a
line. Add a tool as a function and an entry of TOOLS; print nothing else to
stdout. What you print to stderr is in the formation's log, with
logging.system.level: debug in the manifest.
"""
import json
import sys


def count_words(text):
    return f"{len(text.split())} words, {len(text)} characters"


TOOLS = {
    "count_words": {
        "call": count_words,
        "description": "Counts the words and characters of a text",
        "inputSchema": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "what to count"}},
            "required": ["text"],
        },
    },
}


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params.get("protocolVersion", "2025-06-18"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "<<.Name>>", "version": "0.1.0"},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [{"name": n, "description": t["description"], "inputSchema": t["inputSchema"]} for n, t in TOOLS.items()]}
    if method == "tools/call":
        try:
            text, failed = TOOLS[params["name"]]["call"](**params.get("arguments", {})), False
        except Exception as e:  # the model reads it and tries again
            text, failed = f"{type(e).__name__}: {e}", True
        return {"content": [{"type": "text", "text": str(text)}], "isError": failed}
    raise LookupError(f"no method {method}")


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue  # a notification wants no answer
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        reply["result"] = answer(message["method"], message.get("params", {}))
    except LookupError as e:
        reply["error"] = {"code": -32601, "message": str(e)}
    print(json.dumps(reply), flush=True)
