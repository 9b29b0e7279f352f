//go:build !race

package media_test

// memory is the default limit.
const memory = 0
