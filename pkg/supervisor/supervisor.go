// Package supervisor assembles the daemon that hosts formations: its settings,
// its single-instance lock, the registry, the fleet of child processes and the
// management API with the proxy beside it.
//
// It promises that a supervisor that was killed finds its formations again at
// the next start, that a stop drains and stops them, and that two supervisors
// never share a home directory. cmd/supervisor imports it.
package supervisor
