package api

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// ParseQuery reads the parameters of a URL, as [Query.Values] writes them. One that it does
// not know is an error, as is what is no number: who misspells a filter would be given what he
// did not ask for.
func ParseQuery(v url.Values) (Query, error) {
	var q Query
	lists := map[string]*[]string{
		"users": &q.Users, "partitions": &q.Partitions, "accounts": &q.Accounts,
		"states": &q.States, "names": &q.Names, "nodes": &q.Nodes,
	}
	flags := map[string]*bool{"tasks": &q.Tasks, "recent": &q.Recent, "whole": &q.Whole, "duplicates": &q.Attempts}
	for name, values := range v {
		text := values[0]
		if len(values) > 1 {
			return q, fmt.Errorf("query %s=%s: it is given %d times", name, text, len(values))
		}
		var err error
		switch {
		case text == "" && known(name): // as if it was not given
		case lists[name] != nil:
			*lists[name] = strings.Split(text, ",")
		case flags[name] != nil:
			*flags[name], err = strconv.ParseBool(text)
		case name == "ids":
			q.IDs, err = parseIDs(text)
		case name == "since":
			err = number(text, (*int64)(&q.Since))
		case name == "until":
			err = number(text, (*int64)(&q.Until))
		case name == "limit":
			var n int64
			err = number(text, &n)
			q.Limit = int(min(n, math.MaxInt32))
		case name == "after":
			q.After = text
		default:
			return q, fmt.Errorf("query %s: there is no such parameter; there are %s", name, strings.Join(parameters(), ", "))
		}
		if err != nil {
			return q, fmt.Errorf("query %s=%s: %w", name, text, err)
		}
	}
	return q, nil
}

// parameters are the names of all parameters.
func parameters() []string {
	return []string{
		"ids", "users", "partitions", "accounts", "states", "names", "nodes", "since", "until", "limit", "after",
		"tasks", "recent", "whole", "duplicates",
	}
}

func known(name string) bool { return slices.Contains(parameters(), name) }

// number reads one that is not below 0.
func number(text string, into *int64) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return fmt.Errorf("%q is no number", text)
	}
	*into = n
	return nil
}

func parseIDs(text string) (ids []job.ID, err error) {
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseUint(word, 10, 32)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%q is not a job id", word)
		}
		ids = append(ids, job.ID(n))
	}
	return ids, nil
}
