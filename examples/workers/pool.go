package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/httplimit"
)

// intake hands on the lines of in until there are no more or ctx ends. Nothing
// is taken on before a worker is free for it. Why there are no more is known
// before jobs is closed; nil is the end of in.
func intake(ctx context.Context, in io.Reader) (_ <-chan string, ended <-chan error) {
	jobs, why := make(chan string), make(chan error, 1)
	go func() {
		defer close(jobs)
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			select {
			case jobs <- lines.Text():
			case <-ctx.Done():
				return
			}
		}
		why <- lines.Err()
	}()
	return jobs, why
}

// unread is the error that kept intake from reading on. Where ctx has ended
// first it may be waiting for a line still.
func unread(ended <-chan error) error {
	select {
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("the rest of the jobs not read: %w", err)
		}
	default:
	}
	return nil
}

// pool is workers that share one client, and so one limit.
type pool struct {
	options
	client *http.Client

	mu    sync.Mutex // guards what follows
	out   io.Writer
	fails int
}

func newPool(o options, limiter *reservoir.Limiter, out io.Writer) *pool {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = int(o.workers)
	base.ResponseHeaderTimeout = 10 * time.Second // a Client's Timeout would count the wait for tokens
	return &pool{options: o, out: out, client: &http.Client{Transport: &httplimit.Transport{
		Limiter:  limiter,
		Key:      func(*http.Request) string { return "api" }, // the account whose limit it is
		Base:     base,
		MaxPause: time.Minute, // should they say 429 all the same, because others use the account
	}}}
}

// work starts the workers and returns when all have ended: after the last job, or
// soon after ctx has ended. A job that was begun has patience to end.
func (p *pool) work(ctx context.Context, jobs <-chan string) error {
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(p.patience, cancel) })()
	var workers sync.WaitGroup
	for range p.workers {
		workers.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case job, ok := <-jobs:
					if !ok {
						return
					}
					p.report(job, p.do(last, job))
				}
			}
		})
	}
	workers.Wait()
	p.client.CloseIdleConnections()
	if p.fails > 0 {
		return fmt.Errorf("%d jobs not done", p.fails)
	}
	return nil
}

// do sends a job's request. The client waits for its token first.
func (p *pool) do(ctx context.Context, job string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.api+job, nil)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil { // the work would be here
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// report tells how a job has ended, so that what is left can be done later.
func (p *pool) report(job string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.fails++
		fmt.Fprintln(p.out, "failed", job, err)
		return
	}
	fmt.Fprintln(p.out, "done", job)
}
