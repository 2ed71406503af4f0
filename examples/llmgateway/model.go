package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// standIn is in the place of a model server: it sings, a token per chunk.
type standIn struct {
	words  int64         // at most
	hidden int64         // tokens of thoughts, which it uses and does not say
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
	figures := strings.NewReplacer("$IN", strconv.FormatInt(in, 10), "$OUT", strconv.FormatInt(words+m.hidden, 10))
	say := func(s string) {
		_, _ = io.WriteString(w, figures.Replace(s))
		_ = http.NewResponseController(w).Flush()
	}
	if !q.Stream {
		say(`{"usage":{"input_tokens":$IN,"output_tokens":$OUT}}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	song := songs[r.URL.Path]
	say(song[0])
	for i := range words {
		m.before(i)
		say(song[1])
	}
	m.before(words)
	say(song[2])
}

// songs are what is said first, for each word, and last.
var songs = map[string][3]string{
	"/v1/chat/completions": {
		`data: {"id":"c1","object":"chat.completion.chunk","created":1700000000,"model":"song","choices":[{"index":0,"delta":{"role":"assistant"}}]}

`, `data: {"id":"c1","object":"chat.completion.chunk","created":1700000000,"model":"song","choices":[{"index":0,"delta":{"content":"la "}}]}

`, `data: {"id":"c1","object":"chat.completion.chunk","created":1700000000,"model":"song","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: {"id":"c1","object":"chat.completion.chunk","created":1700000000,"model":"song","choices":[],"usage":{"prompt_tokens":$IN,"completion_tokens":$OUT}}

data: [DONE]

`},
	"/v1/messages": {`event: message_start
data: {"type":"message_start","message":{"id":"m1","type":"message","role":"assistant","usage":{"input_tokens":$IN,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

`, `event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"la "}}

`, `event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":$OUT}}

event: message_stop
data: {"type":"message_stop"}

`},
}
