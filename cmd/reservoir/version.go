package main

import (
	"context"
	"fmt"
	"io"
	"runtime/debug"
)

// runVersion prints what the build recorded of itself.
func runVersion(_ context.Context, args []string, stdout, _ io.Writer) error {
	f := newFlags("version", "Prints the version of this build, its revision and its Go.")
	if err := f.parse(args, 0, stdout); err != nil {
		return err
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return fmt.Errorf("this binary was built without version information")
	}
	_, err := fmt.Fprintln(stdout, versionLine(info))
	return err
}

func versionLine(info *debug.BuildInfo) string {
	version, revision, changed := info.Main.Version, "", ""
	if version == "" {
		version = "(devel)"
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = " " + s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = " with changes"
		}
	}
	return "reservoir " + version + revision + changed + " " + info.GoVersion
}
