package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

// made up results: of two rounds, in the second of which the machine was half as
// fast.
func madeUp() results {
	s := scenario{name: "hot-64", title: "Two & a key", kinds: overRedis, goroutines: 64}
	at := func(k kind, perSecond int64, calls int64) *line {
		l := &line{scenario: s, kind: k}
		for _, slow := range []int64{1, 2} {
			one := sample{asked: perSecond / slow, good: perSecond / slow, elapsed: time.Second, commands: perSecond * calls / slow, latency: sim.NewLatency()}
			one.latency.Note(time.Duration(slow) * 100 * time.Second / time.Duration(perSecond))
			l.samples = append(l.samples, one)
		}
		return l
	}
	process := &line{scenario: scenario{name: "core-1", title: "Core", kinds: oneKey, procs: 1}, kind: xTime, samples: []sample{
		{asked: 10, good: 10, elapsed: time.Microsecond, mallocs: 20, latency: sim.NewLatency()},
	}}
	return results{
		groups: [][]*line{{process}, {at(ours, 8_000_000, 0), at(redisRate, 40_000, 1), at(rule1000, 8_000_000, 0)}},
		memory: []memoryLine{{kind: idleKinds[0], bytes: 300}},
	}
}

func TestRatiosAreWithinARound(t *testing.T) {
	r := madeUp()
	require.InDelta(t, 200, ratio("hot-64", ours, redisRate, throughput)(r), 1e-9)
	require.InDelta(t, 6_000_000, r.of("hot-64", ours).median(throughput), 1e-6)
	require.True(t, math.IsNaN(ratio("hot-64", ours, evalsha, throughput)(r)), "not measured")
	require.InDelta(t, 2, median([]float64{3, 1, 2}), 0)
	require.InDelta(t, 2.5, median([]float64{4, 3, 1, 2}), 0)
}

func TestTables(t *testing.T) {
	r := madeUp()
	text := tables(r, &driver{rounds: 2, slice: time.Second})
	require.Contains(t, text, "Two & a key (hot-64)")
	require.Regexp(t, `redis_rate +30\.0 k +2\.\d+ ms +5\.\d+ ms +5\.\d+ ms +1\.00 +0\.00\n`, text)
	require.Regexp(t, `x/time/rate +10\.0 M .* – +2\.00\n`, text)
	require.Regexp(t, `reservoir +300 `, text)

	text = verdict(r)
	require.Regexp(t, `hot-64: throughput to redis_rate +200 × +≥ 100 × +ok\n`, text)
	require.Regexp(t, `hot-64: throughput to Rockset's rule, 1000 +1\.00 × +≥ 1\.50 × +missed\n`, text)
	require.Regexp(t, `memory per idle key +300 B +≤ 320 B +ok\n`, text)
	require.NotContains(t, text, "zipf", "what was not measured is neither reached nor missed")
}

// The chart is well-formed and has a panel for each of its scenarios, and every
// kind in it.
func TestChart(t *testing.T) {
	r := madeUp()
	drawing := draw(r)
	dec := xml.NewDecoder(bytes.NewReader(drawing))
	for {
		_, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	for _, l := range r.groups[1] {
		require.Contains(t, string(drawing), xmlText(l.scenario.title))
		require.Contains(t, string(drawing), ">"+xmlText(l.kind.name)+"<")
	}
	require.NotContains(t, string(drawing), "NaN")
	require.Nil(t, draw(results{groups: r.groups[:1]}))
}

func xmlText(s string) string {
	var buf bytes.Buffer
	_ = xml.EscapeText(&buf, []byte(s))
	return buf.String()
}

// The bars of keys that are asked for once: to what they compare, and the least or most.
func TestBarsOfKeysUsedOnce(t *testing.T) {
	at := func(scenario string, k kind, calls int64) *line {
		s := sample{good: calls, elapsed: time.Second, latency: sim.NewLatency()}
		s.latency.Note(time.Second / time.Duration(calls))
		return &line{scenario: scenarioNamed(scenario), kind: k, samples: []sample{s}}
	}
	for _, row := range []struct {
		batch, direct, alone int64 // per second, where bare EVALSHA makes 1,000
		want                 string
	}{
		{1000, 1400, 900, "ok ok ok"},
		{990, 1390, 800, "missed missed missed"},
	} {
		text := verdict(results{groups: [][]*line{
			{at("once-512", cold, row.batch), at("once-512", direct, row.direct), at("once-512", evalsha, 1000), at("once-512", rueidisBare, 1)},
			{at("once-1", cold, row.alone), at("once-1", evalsha, 1000)},
		}})
		var marks []string
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "once-") {
				marks = append(marks, strings.Fields(line)[len(strings.Fields(line))-1])
			}
		}
		require.Equal(t, row.want, strings.Join(marks, " "), text)
	}
}

func scenarioNamed(name string) scenario {
	list := scenarios()
	return list[slices.IndexFunc(list, func(s scenario) bool { return s.name == name })]
}
