package lua_test

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/lua"
)

// A program in any language shares a limit by the scripts. Here one charges 30 of 100 an
// hour by Take and reads the rest by Check, and a limiter of this library sees that.
func Example() {
	t, stop := redistest.Example()
	defer stop()
	server := redistest.Start(t) // yours
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1}) // Take must not be sent twice
	defer client.Close()

	keys := []string{"{user:42}", "{user:42}:exp"}
	const hour = 3_600_000 // ms
	take, err := redis.NewScript(lua.Take).Run(ctx, client, keys, 30, 100, hour, 0, 0, 0, 0, "").Int64Slice()
	if err != nil {
		panic(err)
	}
	fmt.Println("allowed", take[0]&8 != 0, "remaining", take[3])
	check, err := redis.NewScript(lua.Check).RunRO(ctx, client, keys, 100, hour, "").Int64Slice()
	if err != nil {
		panic(err)
	}
	fmt.Println("remaining", check[3])

	store := redisstore.New(client)
	defer store.Close()
	limiter, err := reservoir.New(store, reservoir.PerHour(100), reservoir.WithDirect())
	if err != nil {
		panic(err)
	}
	defer limiter.Close(ctx)
	r, err := limiter.Allow(ctx, "user:42")
	fmt.Println("remaining", r.Remaining, err)
	// Output:
	// allowed true remaining 70
	// remaining 70
	// remaining 69 <nil>
}
