// Package httpx is the ground both HTTP doors stand on: an echo instance with
// recovery, request ids, CORS and error conversion, a strict reader of JSON
// bodies, a writer of Server-Sent Events and an http.Server with limits.
//
// It promises that no handler panic, slow client or oversized body reaches
// further than its own request, and that every error a handler returns comes
// to the side's own renderer as a fault. It knows no route and no envelope.
// The management API, the formation API and the proxy import it.
package httpx
