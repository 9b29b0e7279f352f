package httpapi

import (
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/openapi"
)

// table is every route of the API but /mcp, which is made of it.
func (a *api) table() []route {
	return slices.Concat(a.publicRoutes(), a.turnRoutes(), a.requestRoutes(), a.sessionRoutes(), a.eventRoutes(), a.credentialRoutes(),
		a.statusRoutes(), a.configRoutes(), a.secretRoutes())
}

func (a *api) publicRoutes() []route {
	return []route{
		{method: "GET", path: "/", head: true, open: a.root, about: "Tells people that the formation is up.", plain: "text/html"},
		{method: "GET", path: "/v1", head: true, open: a.root, about: "Tells people that the formation is up.", plain: "text/html"},
		{
			method: "GET", path: "/v1/health", head: true, open: a.health, about: "Tells load balancers that the formation answers.",
			plain: jsonType, data: healthDocument{},
		},
		{
			method: "GET", path: "/v1/openapi.json", open: a.openAPI, about: "This document.",
			plain: jsonType, data: map[string]any{},
		},
	}
}

func (a *api) turnRoutes() []route {
	return []route{
		{
			method: "POST", path: "/v1/chat", key: clientOrAdmin, user: userOptional, userInBody: true, do: a.chat, tool: "chat", turn: true,
			about:  "Sends a message to the formation and returns its answer.",
			params: []openapi.Param{lastEvent()}, body: chatBody{}, data: chatData{},
		},
		{
			method: "POST", path: "/v1/audiochat", key: clientOrAdmin, user: userOptional, userInBody: true, do: a.audioChat, tool: "audiochat", turn: true,
			about:  "Sends a recording to the formation, whose words are the message, and returns the answer.",
			params: []openapi.Param{lastEvent()}, body: audioBody{}, data: chatData{},
		},
		{
			method: "POST", path: "/v1/route", key: clientOrAdmin, user: userOptional, userInBody: true, do: a.previewRoute, tool: "preview_route",
			about: "Tells which agents a message would go to, and why, without sending it to them.",
			body:  routeBody{}, data: overlord.Preview{},
		},
	}
}

func (a *api) requestRoutes() []route {
	return []route{
		{
			method: "GET", path: "/v1/requests", key: dual, user: userByClient, do: a.listRequests, tool: "list_requests",
			about: "Lists the newest requests of a user.", data: requestList{},
		},
		{
			method: "GET", path: "/v1/requests/:id", key: dual, user: userOptional, do: a.getRequest, tool: "get_request_status",
			about: "Tells how a request is, and its result when it has one.", data: requestDocument{},
		},
		{
			method: "GET", path: "/v1/requests/:id/trace", key: dual, user: userOptional, do: a.getTrace, tool: "get_request_trace",
			about: "Tells what was done for a request: agents considered, model and tool calls, with duration, tokens and cost.",
			data:  traceDocument{},
		},
		{
			method: "DELETE", path: "/v1/requests/:id", key: dual, user: userOptional, do: a.cancelRequest, tool: "cancel_request",
			about: "Cancels a request that runs.", data: cancellation{},
		},
	}
}

func (a *api) sessionRoutes() []route {
	limit := query("limit", "how many, 1 to 1000; 50 when left out", 0)
	return []route{
		{
			method: "GET", path: "/v1/sessions", key: clientOrAdmin, user: userRequired, do: a.listSessions, tool: "list_sessions",
			about:  "Lists the sessions of a user, the newest first.",
			params: []openapi.Param{query("active_only", "only those in use", false), limit}, data: sessionList{},
		},
		{
			method: "GET", path: "/v1/sessions/:id", key: clientOrAdmin, user: userRequired, do: a.getSession, tool: "get_session",
			about: "Tells about a session.", data: sessionDocument{},
		},
		{
			method: "GET", path: "/v1/sessions/:id/messages", key: clientOrAdmin, user: userRequired, do: a.sessionMessages,
			tool: "get_session_messages", about: "Lists the messages of a session.",
			params: []openapi.Param{limit, query("before", "only those before this time, RFC 3339", nil)}, data: messageList{},
		},
	}
}

// eventRoutes are those of who looks on; without telemetry there is nothing to
// see but the streams of turns.
func (a *api) eventRoutes() []route {
	stream := route{
		method: "GET", path: "/v1/events/:session/:request", key: dual, user: userByClient, do: a.followRequest, plain: eventType,
		tool: "get_request_events", about: "The stream of a turn that was asked for as a stream, from its beginning or after a frame.",
		params: []openapi.Param{lastEvent()},
	}
	if a.cfg.Telemetry == nil {
		return []route{stream}
	}
	filters := []openapi.Param{
		query("user_id", "one of the filters is needed; with the client key this one", nil), query("session_id", "", nil),
		query("request_id", "", nil), query("agent_id", "", nil), query("level", "DEBUG to CRITICAL, and above", nil),
		query("event_type", "* stands for any text", nil),
	}
	return []route{
		stream,
		{
			method: "GET", path: "/v1/events", key: dual, user: userByClient, do: a.followEvents, plain: eventType,
			tool: "list_events", about: "What happens in the formation for a user, as it happens.",
		},
		{
			method: "GET", path: "/v1/events/:session", key: dual, user: userByClient, do: a.followEvents, plain: eventType,
			tool: "get_session_events", about: "What happens in a session, as it happens.",
		},
		{
			method: "GET", path: "/v1/logs", key: dual, do: a.followLogs, plain: eventType, about: "The log and all events, as they come.",
			params: filters,
		},
		{
			method: "GET", path: "/metrics", key: adminOnly, do: a.metrics, plain: "text/plain", about: "Numbers for Prometheus.",
			via: func(next echo.HandlerFunc) echo.HandlerFunc { return bearer(a.head.adminKey, next) },
		},
	}
}

func (a *api) credentialRoutes() []route {
	return []route{
		{
			method: "GET", path: "/v1/credentials/services", key: dual, do: a.listServices, tool: "list_credential_services",
			about: "Lists the services that tool servers want a user's credentials for.", data: serviceListDocument{},
		},
		{
			method: "GET", path: "/v1/credentials", key: dual, user: userRequired, do: a.listCredentials, tool: "list_credentials",
			about: "Lists the credentials that a user gave, without their secrets.", data: credentialListDocument{},
		},
		{
			method: "POST", path: "/v1/credentials", key: dual, user: userRequired, do: a.createCredential, tool: "create_credential",
			about: "Keeps a user's credential for a service.", body: credentialBody{}, data: credentialDocument{}, status: http.StatusCreated,
		},
		{
			method: "GET", path: "/v1/credentials/:id", key: dual, user: userRequired, do: a.getCredential, tool: "get_credential",
			about: "Tells about a credential, without its secret.", data: credentialDocument{},
		},
		{
			method: "DELETE", path: "/v1/credentials/:id", key: dual, user: userRequired, do: a.deleteCredential, tool: "delete_credential",
			about: "Deletes a credential.", data: credentialDeleted{},
		},
	}
}

func (a *api) statusRoutes() []route {
	return []route{
		{
			method: "GET", path: "/v1/status", key: adminOnly, do: a.status, data: statusDocument{},
			about: "The formation in numbers.",
		},
		{
			method: "GET", path: "/v1/usage", key: adminOnly, do: a.usage, data: usageDocument{},
			about: "What calls to models used and cost, and how the budgets stand.",
			params: []openapi.Param{
				query("from", "a time or a date; a day before to when left out", nil), query("to", "a time or a date; now when left out", nil),
				query("group_by", "day, agent, user, model or provider", nil), query("user_id", "only this user's", nil),
			},
		},
		{method: "GET", path: "/v1/agents", key: adminOnly, do: a.listAgents, data: agentList{}, about: "Lists the agents."},
		{method: "GET", path: "/v1/agents/:id", key: adminOnly, do: a.getAgent, data: block{}, about: "Tells about an agent."},
		{method: "GET", path: "/v1/mcp", key: adminOnly, do: a.getMCP, data: block{}, about: "How tools are called, whatever their server."},
		{method: "GET", path: "/v1/mcp/servers", key: adminOnly, do: a.listServers, data: mcpServersDocument{}, about: "Lists the tool servers."},
		{method: "GET", path: "/v1/mcp/servers/:id", key: adminOnly, do: a.getServer, data: mcpServerDocument{}, about: "Tells about a tool server."},
		{method: "GET", path: "/v1/mcp/tools", key: adminOnly, do: a.listTools, data: mcpToolsDocument{}, about: "Lists the tools of all servers."},
	}
}

func (a *api) configRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/config", key: adminOnly, do: a.getConfig, data: block{}, about: "The whole configuration as it applies."},
		{method: "GET", path: "/v1/formation", key: adminOnly, do: a.getFormation, data: formationDocument{}, about: "The formation and its agents."},
		{method: "GET", path: "/v1/overlord", key: adminOnly, do: a.getOverlord, data: block{}, about: "How the overlord is configured."},
		{method: "GET", path: "/v1/overlord/soul", key: adminOnly, do: a.getSoul, data: soulDocument{}, about: "The text that gives answers their tone."},
		{method: "GET", path: "/v1/llm/settings", key: adminOnly, do: a.getLLMSettings, data: block{}, about: "Models and their settings."},
		{method: "GET", path: "/v1/async", key: adminOnly, do: a.getAsync, data: block{}, about: "When requests go on in the background."},
	}
}

func (a *api) secretRoutes() []route {
	if a.cfg.Secrets == nil {
		return nil
	}
	const one = "/v1/secrets/:key"
	update := route{
		method: "PUT", path: one, key: adminOnly, do: a.updateSecret, body: secretBody{}, data: secretMessage{}, about: "Gives a secret another value.",
	}
	older := update // of older clients (server.md 10.5)
	older.method = "POST"
	return []route{
		{method: "GET", path: "/v1/secrets", key: adminOnly, do: a.listSecrets, data: secretListDocument{}, about: "Lists the secrets, masked."},
		{
			method: "POST", path: "/v1/secrets", key: adminOnly, do: a.createSecret, body: secretBody{}, data: secretMessage{},
			status: http.StatusCreated, about: "Adds a secret.",
		},
		{
			method: "POST", path: "/v1/secrets/reload", key: adminOnly, do: a.reloadSecrets, data: secretReload{},
			about: "Reads the encrypted secrets again.",
		},
		{method: "GET", path: one, key: adminOnly, do: a.getSecret, data: secretDocument{}, about: "Shows a secret, masked."},
		update, older,
		{method: "DELETE", path: one, key: adminOnly, do: a.deleteSecret, data: secretMessage{}, about: "Deletes a secret."},
	}
}
