package httpapi

// Served lists what the router serves, each "<METHOD> <path>".
func (a *API) Served() []string {
	var all []string
	for _, r := range a.echo.Routes() {
		all = append(all, r.Method+" "+r.Path)
	}
	return all
}

// Documented lists the documented failures of each route of the table that has a
// handler of its own, each "<status> <name>".
func (a *API) Documented() map[string][]string {
	all := make(map[string][]string)
	for _, r := range a.table {
		all[r.method+" "+r.path] = a.failures(r)
	}
	return all
}
