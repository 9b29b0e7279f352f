// Package e2e proves the promises of the service from outside: the real
// programs, real ports, plain HTTP and the command line, with a scripted model
// server as the only part that is not the product. It imports the harness, and
// nobody imports it.
package e2e
