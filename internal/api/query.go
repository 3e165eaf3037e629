package api

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// ParseQuery reads the parameters of a URL, as [Query.Values] writes them. Ones that it
// does not know are left to the caller.
func ParseQuery(v url.Values) (Query, error) {
	var q Query
	for name, into := range map[string]*[]string{
		"users": &q.Users, "partitions": &q.Partitions, "accounts": &q.Accounts,
		"states": &q.States, "names": &q.Names, "nodes": &q.Nodes,
	} {
		if text := v.Get(name); text != "" {
			*into = strings.Split(text, ",")
		}
	}
	if text := v.Get("ids"); text != "" {
		for word := range strings.SplitSeq(text, ",") {
			n, err := strconv.ParseUint(word, 10, 32)
			if err != nil || n == 0 {
				return q, fmt.Errorf("query ids=%s: %q is not a job id", text, word)
			}
			q.IDs = append(q.IDs, job.ID(n))
		}
	}
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(v.Get(name), 10, 64)
		return n
	}
	q.Since, q.Until, q.Limit = job.Time(number("since")), job.Time(number("until")), int(number("limit"))
	q.Tasks, q.Recent, q.After = v.Get("tasks") == "1", v.Get("recent") == "1", v.Get("after")
	return q, nil
}
