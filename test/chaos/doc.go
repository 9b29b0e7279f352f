// Package chaos holds the crash contract as executable checks: every row of
// the matrix is something that the service acknowledges, every column somebody
// who is killed with SIGKILL, and every cell the test TestMatrix/<row>/<victim>.
// Rows join the matrix together with the feature that they speak of. It imports
// the end-to-end harness, and nobody imports it.
package chaos
