package main

import (
	"encoding/json"
	"fmt"
	"net/http"
)

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
		Most     int64 `json:"max_tokens"`
		OpenAIs  int64 `json:"max_completion_tokens"`
	}
	if json.NewDecoder(r.Body).Decode(&q) != nil || q.Messages == nil {
		fail(w, http.StatusBadRequest, "invalid_request_error", "no messages")
		return
	}
	in, words := tokensIn(len(q.Messages)), min(m.words, max(q.Most, q.OpenAIs))
	out := words + m.hidden
	if !q.Stream {
		fmt.Fprintf(w, `{"usage":{"input_tokens":%d,"output_tokens":%d}}`, in, out)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	head := event{ID: "c1", Object: "chat.completion.chunk", Created: 1700000000, Model: "song"}
	first, word, reason := head.chunk(`{"index":0,"delta":{"role":"assistant"}}`, ""), head.chunk(`{"index":0,"delta":{"content":"la "}}`, ""), "stop"
	api := dialects[r.URL.Path]
	if api == anthropic {
		first, word, reason = fmt.Sprintf(opening, in), `event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"la "}}

`, "end_turn"
	}
	fmt.Fprint(w, first)
	for i := range words {
		m.before(i)
		fmt.Fprint(w, word)
		_ = http.NewResponseController(w).Flush()
	}
	m.before(words)
	_, _ = w.Write(request{dialect: api, usage: true}.last(head, reason, in, out))
}

// opening is the beginning of a stream of Anthropic's.
const opening = `event: message_start
data: {"type":"message_start","message":{"id":"m1","type":"message","role":"assistant","usage":{"input_tokens":%d,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

`
