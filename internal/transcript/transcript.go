// Package transcript runs the commands that a document shows, so that a test can
// compare their output with the output in the document.
package transcript

import (
	"regexp"
	"strings"
)

// block is a piece of a document that shows commands, after "$ ", and what they
// print.
var block = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")

// Rerun returns the document with the output of each command replaced by what run
// returns. A command continues on the next line after a backslash.
func Rerun(document []byte, run func(command string) string) []byte {
	return block.ReplaceAllFunc(document, func(b []byte) []byte {
		var out strings.Builder
		out.WriteString("```console\n")
		for _, command := range commands(string(b)) {
			out.WriteString("$ " + command + "\n" + run(command))
		}
		return []byte(out.String() + "```")
	})
}

// commands are the lines after "$ ", with their continuation lines.
func commands(block string) (all []string) {
	lines := strings.Split(block, "\n")
	for i := 0; i < len(lines); i++ {
		command, ok := strings.CutPrefix(lines[i], "$ ")
		if !ok {
			continue
		}
		for strings.HasSuffix(command, `\`) {
			i++
			command += "\n" + lines[i]
		}
		all = append(all, command)
	}
	return all
}
