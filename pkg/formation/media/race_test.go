//go:build race

package media_test

// memory is no limit: the race detector reserves more than any.
const memory = -1
