package program

import (
	"flag"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Update is the flag with which tests write what they measure and print into README.md.
var Update = flag.Bool("update", false, "write what is measured and printed into README.md")

// Readme returns README.md, and README.md with what run returns for each command in place
// of what it shows. With -update it writes the latter, and returns it twice.
func Readme(t testing.TB, run func(command string) string) (was, now string) {
	t.Helper()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	was, now = string(text), rerun(string(text), run)
	if *Update {
		require.NoError(t, os.WriteFile("README.md", []byte(now), 0o644))
		was = now
	}
	return was, now
}

var (
	block   = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")
	command = regexp.MustCompile(`(?m)^\$ ((?:.*\\\n)*.*)\n`) // a backslash continues it on the next line
)

func rerun(document string, run func(command string) string) string {
	return block.ReplaceAllStringFunc(document, func(b string) string {
		now := "```console\n"
		for _, c := range command.FindAllStringSubmatch(b, -1) {
			now += c[0] + run(c[1])
		}
		return now + "```"
	})
}

// RequireTranscript requires that the commands of README.md print what it shows, apart from
// what follows the first group of varies. They call the server at url as localhost:8080.
func RequireTranscript(t testing.TB, url string, varies *regexp.Regexp) {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Log("there is no curl: nothing to compare with")
		return
	}
	host := strings.TrimPrefix(url, "http://")
	was, now := Readme(t, func(command string) string {
		sh := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(command, "localhost:8080", host))
		sh.Env = append(os.Environ(), "http_proxy=", "HTTP_PROXY=", "ALL_PROXY=", "all_proxy=")
		sh.Stderr = os.Stderr
		out, err := sh.Output()
		require.NoError(t, err, command)
		return strings.NewReplacer("\r", "", host, "localhost:8080").Replace(string(out))
	})
	require.Equal(t, varies.ReplaceAllString(was, "$1*"), varies.ReplaceAllString(now, "$1*"))
}
