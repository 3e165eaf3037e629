package listing

import "io"

// QueueUsage writes what squeue takes.
func QueueUsage(w io.Writer) error {
	_, err := io.WriteString(w, `Usage: squeue [OPTIONS]
  -A, --account=account(s)     only jobs of these accounts
  -r, --array                  each task of an array by itself
  -h, --noheader               no headings
  -j, --jobs=job(s)            only these: 12, 12_3, 12_[1-4]
  -l, --long                   more columns
      --me                     only my jobs
  -n, --name=job_name(s)       only jobs of these names
      --noconvert              sizes in MiB
  -o, --format=format          columns: %[[.]size]type[suffix] ...; %all
  -O, --Format=format          columns: name[:[.]size][suffix],...
  -p, --partition=name(s)      only jobs of these partitions
  -s, --steps[=step(s)]        steps instead of jobs
  -S, --sort=fields            order: letters of --format, - before those that fall
      --start                  when pending jobs are expected to start
  -t, --states=states          only jobs in these states; all
  -u, --user=user(s)           only jobs of these users
  -w, --nodelist=node(s)       only jobs on these nodes
  -V, --version
`)
	return err
}

// InfoUsage writes what sinfo takes.
func InfoUsage(w io.Writer) error {
	_, err := io.WriteString(w, `Usage: sinfo [OPTIONS]
  -d, --dead                   only nodes that do not answer
  -e, --exact                  a line only for nodes that are alike in all that is shown
  -h, --noheader               no headings
  -l, --long                   more columns
  -n, --nodes=node(s)          only these nodes
  -N, --Node                   a line a node
  -o, --format=format          columns: %[[.]size]type[suffix] ...; %all
  -O, --Format=format          columns: name[:[.]size][suffix],...
  -p, --partition=name(s)      only these partitions
  -r, --responding             only nodes that answer
  -R, --list-reasons           why nodes are out of service
  -s, --summarize              how many nodes are in use
  -S, --sort=fields            order: letters of --format, - before those that fall
  -t, --states=states          only nodes in these states
  -V, --version
`)
	return err
}

// AcctUsage writes what sacct takes.
func AcctUsage(w io.Writer) error {
	_, err := io.WriteString(w, `Usage: sacct [OPTIONS]
  -a, --allusers               jobs of all users, who may see them
  -A, --accounts=account(s)
  -b, --brief                  jobid, state and exitcode
  -B, --batch-script           the scripts of the jobs
      --delimiter=text         between fields of -p and -P
  -e, --helpformat             the names of all fields
  -E, --endtime=time           jobs that were alive before
  -j, --jobs=job(s)[.step]     only these
  -l, --long                   many fields
      --name=name(s)
  -n, --noheader
  -N, --nodelist=nodes
  -o, --format=field[%[-]size],...
  -p, --parsable               fields separated by |, one behind the last
  -P, --parsable2              fields separated by |
  -r, --partition=name(s)
  -s, --state=states
  -S, --starttime=time         jobs that were alive after; today's midnight
  -T, --truncate               times outside of -S and -E are cut
  -u, --user=user(s)
      --units=K|M|G|T|P
  -V, --version
  -X, --allocations            no steps
`)
	return err
}

// StatUsage writes what sstat takes.
func StatUsage(w io.Writer) error {
	_, err := io.WriteString(w, `Usage: sstat [OPTIONS] -j JOB[.STEP],...
  -a, --allsteps               all steps of a job, not only the first one of srun
  -e, --helpformat             the names of all fields
  -i, --pidformat              jobid, nodelist and pids
  -j, --jobs=job(s)[.step]     running steps: 12, 12.0, 12.batch, 12_3.0
  -n, --noheader
      --noconvert              sizes in KiB
  -o, --format=field[%[-]size],...
  -p, --parsable               fields separated by |, one behind the last
  -P, --parsable2              fields separated by |
  -V, --version
`)
	return err
}

// DiagUsage writes what sdiag takes.
func DiagUsage(w io.Writer) error {
	_, err := io.WriteString(w, `Usage: sdiag [OPTIONS]
  -a, --all           all statistics
  -r, --reset         reset statistics
  -M, --cluster       of this cluster
  -i, --sort-by-id    sort RPCs by id
  -t, --sort-by-time  sort RPCs by total run time
  -T, --sort-by-time2 sort RPCs by average run time
  -V, --version
`)
	return err
}
