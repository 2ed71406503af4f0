package program

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRerun(t *testing.T) {
	const document = "# Title\n\n```sh\n$ not run\n```\n\n```console\n$ one\nold\n$ two \\\n  more\n```\n\nText.\n\n```console\n$ three\n```\n"
	var ran []string
	got := rerun(document, func(command string) string {
		ran = append(ran, command)
		return "new\n"
	})
	require.Equal(t, []string{"one", "two \\\n  more", "three"}, ran)
	require.Equal(t, "# Title\n\n```sh\n$ not run\n```\n\n```console\n$ one\nnew\n$ two \\\n  more\nnew\n```\n\nText.\n\n```console\n$ three\nnew\n```\n", got)
}
