package nvidia

// What is kept in a file, for its fuzz test.
var (
	Encode = encode
	Decode = decode
)
