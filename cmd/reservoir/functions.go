package main

import (
	"context"
	"io"

	"github.com/go-reservoir/reservoir/lua"
)

const functionsAbout = `Prints the store's scripts as a library of Redis Functions, for servers where
programs may not send scripts. Load it as an operator, on every master of a
cluster, and make the programs' stores with redisstore.WithFunctions:

	reservoir functions | redis-cli -x FUNCTION LOAD

The library's name changes with its text, so that old and new serve side by side.`

// runFunctions writes the library and nothing else, to be piped on.
func runFunctions(_ context.Context, args []string, stdout, _ io.Writer) error {
	f := newFlags("functions", functionsAbout)
	if err := f.parse(args, 0, stdout); err != nil {
		return err
	}
	_, err := io.WriteString(stdout, lua.Library())
	return err
}
