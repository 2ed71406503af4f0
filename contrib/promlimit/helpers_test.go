package promlimit_test

import (
	"crypto/rand"
	"embed"
)

// source is the package's own text: go test reruns when it changes.
//
//go:embed promlimit.go
var source embed.FS

func rnd() string { return rand.Text() }
