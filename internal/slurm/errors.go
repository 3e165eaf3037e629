package slurm

import (
	"errors"
	"os"
	"strings"
)

// SystemError is what strerror(3) would say of what failed.
func SystemError(err error) string {
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:]
}

// ErrorText is Slurm's sentence for an error, by its name without ESLURM_; empty: it is
// not one of Slurm's.
func ErrorText(kind string) string {
	switch kind {
	case "INVALID_JOB_ID":
		return "Invalid job id specified"
	case "INVALID_PARTITION_NAME":
		return "Invalid partition name specified"
	case "INVALID_NODE_NAME":
		return "Invalid node name specified"
	case "REQUESTED_NODE_CONFIG_UNAVAILABLE", "NODE_CONFIGURATION":
		return "Requested node configuration is not available"
	case "JOB_MISSING_REQUIRED_PARTITION_GROUP":
		return "User's group not permitted to use this partition"
	case "INVALID_ACCOUNT":
		return "Invalid account or account/partition combination specified"
	case "INVALID_QOS":
		return "Invalid qos specification"
	case "INVALID_ARRAY", "INVALID_JOB_ARRAY":
		return "Invalid job array specification"
	case "ALREADY_DONE":
		return "Job/step already completing or completed"
	case "DEPENDENCY":
		return "Job dependency problem"
	case "ACCESS_DENIED", "USER_ID_MISSING":
		return "Access/permission denied"
	case "INVALID_TIME_LIMIT":
		return "Requested time limit is invalid (missing or exceeds some limit)"
	case "TOO_MANY_REQUESTED_CPUS":
		return "More processors requested than permitted"
	case "TOO_MANY_REQUESTED_NODES":
		return "Node count specification invalid"
	case "NODES_BUSY":
		return "Requested nodes are busy"
	case "INVALID_GRES":
		return "Invalid generic resource (gres) specification"
	case "INVALID_TASK_MEMORY":
		return "Memory required by task is not available"
	case "INVALID_FEATURE":
		return "Invalid feature specification"
	case "INVALID_LICENSES":
		return "Invalid license specification"
	case "JOB_NOT_PENDING":
		return "Job is no longer pending execution"
	case "NOT_SUPPORTED", "REQUESTED_PART_CONFIG_UNAVAILABLE":
		return "Requested partition configuration not available now"
	case "PROTOCOL_VERSION_ERROR":
		return "Incompatible versions of client and server code"
	case "JOB_PENDING":
		return "Job is pending execution"
	case "DISABLED":
		return "Requested operation is presently disabled"
	}
	return ""
}
