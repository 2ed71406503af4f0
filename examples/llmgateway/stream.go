package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// request is the part of a request that the gateway uses.
type request struct {
	model  string
	stream bool
	most   int64  // tokens of output
	usage  bool   // the client asks for the usage of a stream
	body   []byte // for the model server
}

// read parses a request and writes it anew, so that the model server reads it as we do.
func read(body io.Reader) (q request, err error) {
	q.most = mostOutput
	fields, options, n := map[string]json.RawMessage{}, map[string]any{}, 1
	if err = json.NewDecoder(body).Decode(&fields); err != nil || fields == nil {
		return q, fmt.Errorf("the body is not a JSON object: %v", err)
	}
	for _, f := range []struct {
		name string
		to   any
	}{{"model", &q.model}, {"stream", &q.stream}, {"stream_options", &options}, {"n", &n}, {"max_tokens", &q.most}, {"max_completion_tokens", &q.most}} {
		if text, ok := fields[f.name]; ok && json.Unmarshal(text, f.to) != nil {
			return q, fmt.Errorf("%s has the wrong type", f.name)
		}
	}
	switch _, known := prices[q.model]; {
	case !known:
		return q, fmt.Errorf("there is no such model")
	case q.most < 1 || q.most > mostOutput:
		return q, fmt.Errorf("max_completion_tokens is %d, want 1 to %d", q.most, mostOutput)
	case n != 1:
		return q, fmt.Errorf("n is %d, want 1", n)
	}
	delete(fields, "max_tokens") // the former name
	fields["max_completion_tokens"], _ = json.Marshal(q.most)
	if q.stream { // the model server reports usage only on request
		q.usage = options["include_usage"] == true
		fields["stream_options"] = json.RawMessage(`{"include_usage":true}`)
	}
	q.body, err = json.Marshal(fields)
	return q, err
}

// event has the fields of a stream's event, or of a plain completion, that matter here.
type event struct {
	ID, Object, Model string
	Created           int64
	Choices           []struct{ Delta, Message struct{ Content string } } // Message in a plain completion
	Usage             struct {                                            // the total, at the end
		In  int64 `json:"prompt_tokens"`
		Out int64 `json:"completion_tokens"`
	}
}

// tokensIn estimates how many tokens so many bytes are. A tokenizer is more exact; the
// difference is settled.
func tokensIn(bytes int) int64 { return int64(bytes+3) / 4 }

// copy passes the lines of a stream, or a plain completion as a whole, on to the client
// while they are paid for.
func (q request) copy(ctx context.Context, to http.ResponseWriter, from io.Reader, c *charge) error {
	lines, end := bufio.NewReader(from), byte('\n')
	if !q.stream {
		end = 0 // which is in no JSON
	}
	for over := false; !over; {
		var e event
		line, err := lines.ReadBytes(end)
		if over = err == io.EOF; err != nil && !over {
			return err
		}
		_ = json.Unmarshal(bytes.TrimPrefix(line, []byte("data:")), &e) // text other than JSON has no tokens: [DONE]
		n := int64(0)
		for _, choice := range e.Choices {
			n += tokensIn(len(choice.Delta.Content) + len(choice.Message.Content))
		}
		paid := c.add(ctx, max(0, min(n, q.most-c.out))) // a completion cannot have more
		if e.Usage.In+e.Usage.Out > 0 {                  // they replace our estimates
			c.in, c.out = e.Usage.In, e.Usage.Out
		}
		switch {
		case !paid: // end before e, as if max_completion_tokens were reached
			line, over = q.last(e, "length", c.in, c.out), true
		case q.stream && !q.usage && len(e.Choices) == 0 && e.Usage.Out > 0:
			line = nil // this client did not ask for it, and may not understand it
		}
		if _, err := to.Write(line); err != nil {
			return err
		}
		_ = http.NewResponseController(to).Flush()
	}
	return nil
}

// last returns the end of a stream that ends for that reason, in place of e.
func (q request) last(e event, reason string, in, out int64) []byte {
	text := e.chunk(fmt.Sprintf(`{"index":0,"delta":{},"finish_reason":%q}`, reason), "")
	if q.usage {
		text += e.chunk("", fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, in, out, in+out))
	}
	return []byte(text + "data: [DONE]\n\n")
}

// chunk returns an event with the same head as e.
func (e event) chunk(choices, rest string) string {
	return fmt.Sprintf("data: {\"id\":%q,\"object\":%q,\"created\":%d,\"model\":%q,\"choices\":[%s]%s}\n\n", e.ID, e.Object, e.Created, e.Model, choices, rest)
}

// standIn replaces a model server. It sings one token per chunk.
type standIn struct {
	words  int64         // at most
	hidden int64         // tokens of thoughts, which count as used but are not streamed
	before func(i int64) // is called before each word and at the end
}

func (m standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Stream   bool
		Messages json.RawMessage
		Most     int64 `json:"max_completion_tokens"`
	}
	_ = json.NewDecoder(r.Body).Decode(&q) // the gateway has written it
	in, words := tokensIn(len(q.Messages)), min(m.words, q.Most)
	out := words + m.hidden
	if !q.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"c1","object":"chat.completion","created":1700000000,"model":"song","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],`+
			`"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`, strings.Repeat("la ", int(words)), in, out, in+out)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	head := event{ID: "c1", Object: "chat.completion.chunk", Created: 1700000000, Model: "song"}
	fmt.Fprint(w, head.chunk(`{"index":0,"delta":{"role":"assistant"}}`, ""))
	for i := range words {
		m.before(i)
		fmt.Fprint(w, head.chunk(`{"index":0,"delta":{"content":"la "}}`, ""))
		_ = http.NewResponseController(w).Flush()
	}
	m.before(words)
	_, _ = w.Write(request{usage: true}.last(head, "stop", in, out))
}
