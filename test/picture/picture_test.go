// Package picture draws the picture of README.md: what the demo recorded over a minute, as SVG. "make
// picture" records and draws it anew.
package picture

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const recorded, drawn = "../results/demo.json", "../results/demo.svg"

var update = flag.Bool("update", false, "draw the picture anew")

// The picture that README.md shows is what the recorded data make.
func TestPictureIsOfTheData(t *testing.T) {
	data, err := os.ReadFile(recorded)
	require.NoError(t, err)
	want, err := draw(data)
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(drawn, want, 0o666))
	}
	got, err := os.ReadFile(drawn)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "make picture draws it anew")
}

// Browsers show no picture that is not well-formed. Bars stay within their diagram.
func TestPictureIsWellFormed(t *testing.T) {
	data, err := os.ReadFile(recorded)
	require.NoError(t, err)
	r, err := parse(data)
	require.NoError(t, err)
	picture, err := draw(data)
	require.NoError(t, err)
	elements := map[string]int{}
	for d := xml.NewDecoder(bytes.NewReader(picture)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok {
			elements[e.Name.Local]++
			for _, a := range e.Attr {
				require.NotContains(t, a.Value, "-0", "%s of %s", a.Name.Local, e.Name.Local)
				require.False(t, strings.HasPrefix(a.Value, "-") || a.Value == "NaN", "%s of %s is %s", a.Name.Local, e.Name.Local, a.Value)
			}
		}
	}
	require.Equal(t, 1, elements["title"])
	require.Greater(t, elements["rect"], len(r.Samples), "a bar at least for each second")
}

// A record without samples or faults, or over the limit, draws nothing.
func TestNoPictureOfNothing(t *testing.T) {
	for _, data := range []string{"", "{}", `{"samples":[{"at":1},{"at":2}],"total":{"requests":1}}`,
		`{"samples":[{"at":1},{"at":2}],"total":{"requests":1},"killed_at":1,"down_at":1,"up_at":2,"limit":1,"most_admitted_in_a_window":2}`} {
		_, err := draw([]byte(data))
		require.Error(t, err, data)
	}
}
