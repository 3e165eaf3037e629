package store

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

// History implements Store.
func (s *SQLite) History(ctx context.Context, f Filter, yield func(Past) error) error {
	where, args := f.where()
	text := "SELECT job, attempt, nodes, data FROM jobs WHERE " + where + " ORDER BY job, attempt"
	if f.Limit > 0 {
		text += fmt.Sprintf(" LIMIT %d", f.Limit)
	}
	// Both queries see the same moment.
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("read accounting: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	past, err := rowsOf(ctx, tx, text, args)
	if err != nil {
		return fmt.Errorf("read accounting: %w", err)
	}
	steps, err := tx.PrepareContext(ctx, "SELECT data FROM steps WHERE job = ? AND attempt = ? ORDER BY step")
	if err != nil {
		return fmt.Errorf("read accounting: %w", err)
	}
	defer func() { _ = steps.Close() }()
	for i := range past {
		rows, err := steps.QueryContext(ctx, past[i].Job, past[i].Attempt)
		if err != nil {
			return fmt.Errorf("read accounting: %w", err)
		}
		for rows.Next() {
			var data []byte
			if err = rows.Scan(&data); err != nil {
				break
			}
			past[i].Steps = append(past[i].Steps, data)
		}
		if err == nil {
			err = rows.Err()
		}
		_ = rows.Close()
		if err != nil {
			return fmt.Errorf("read accounting: %w", err)
		}
		if err := yield(past[i]); err != nil {
			return err
		}
	}
	return nil
}

func rowsOf(ctx context.Context, tx *sql.Tx, text string, args []any) ([]Past, error) {
	rows, err := tx.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var past []Past
	for rows.Next() {
		var p Past
		var nodes string
		if err := rows.Scan(&p.Job, &p.Attempt, &nodes, &p.Data); err != nil {
			return nil, err
		}
		if nodes != "" {
			p.Nodes = strings.Split(nodes, ",")
		}
		past = append(past, p)
	}
	return past, rows.Err()
}

// where is a filter as SQL.
func (f *Filter) where() (string, []any) {
	terms, args := []string{"1"}, []any(nil)
	add := func(column string, values []any) {
		if len(values) > 0 {
			terms = append(terms, column+" IN (?"+strings.Repeat(",?", len(values)-1)+")")
			args = append(args, values...)
		}
	}
	if len(f.IDs) > 0 {
		ids := list(f.IDs)
		marks := "(?" + strings.Repeat(",?", len(ids)-1) + ")"
		terms = append(terms, "(job IN "+marks+" OR array IN "+marks+")")
		args = append(append(args, ids...), ids...)
	}
	add("user", list(f.Users))
	add("account", list(f.Accounts))
	add("part", list(f.Partitions))
	add("name", list(f.Names))
	add("state", list(f.States))
	if f.Since > 0 {
		terms, args = append(terms, `"end" >= ?`), append(args, f.Since)
	}
	if f.Until > 0 {
		terms, args = append(terms, "CASE WHEN start > 0 THEN start ELSE submit END <= ?"), append(args, f.Until)
	}
	if f.Latest {
		terms = append(terms, "NOT EXISTS (SELECT 1 FROM jobs AS later WHERE later.job = jobs.job AND later.attempt > jobs.attempt)")
	}
	if f.AfterJob > 0 {
		terms, args = append(terms, "(job > ? OR job = ? AND attempt > ?)"), append(args, f.AfterJob, f.AfterJob, f.AfterAttempt)
	}
	return strings.Join(terms, " AND "), args
}

func list[T any](values []T) []any {
	all := make([]any, len(values))
	for i := range values {
		all[i] = values[i]
	}
	return all
}
