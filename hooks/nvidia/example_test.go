package nvidia_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
)

// What a launcher does for "gangway run --gpus 2". Leasing the GPUs, merging the spec
// with other hooks' and applying it are other packages' part.
func Example() {
	ctx := context.Background()
	driver, params, err := nvidia.Cached(ctx, "/run/user/1000/gangway/gpus", nvidia.Options{})
	if err != nil && !errors.Is(err, nvidia.ErrNoDriver) {
		fmt.Println(err)
		return
	}
	choice, err := nvidia.Select(driver, nvidia.Request{GPUs: "2", User: os.Getenv("NVIDIA_VISIBLE_DEVICES")})
	if err != nil || choice.Count == 0 {
		fmt.Println(err)
		return
	}
	given := choice.Candidates[:choice.Count] // those that could be leased

	capabilities, _, err := nvidia.ChooseCapabilities(os.Getenv("NVIDIA_DRIVER_CAPABILITIES"), "of the image")
	if err != nil {
		fmt.Println(err)
		return
	}
	spec := driver.Spec(capabilities, params)
	for _, device := range given {
		fmt.Println(spec.Kind + "=" + device.Name)
	}
	loaded := nvidia.Load(os.DirFS("/the/image"), driver.Needs(capabilities))
	facts := driver.Facts()
	if loaded.Compat.Use {
		facts.CUDA = loaded.Compat.CUDA
	}
	if _, err := nvidia.Require([]string{"NVIDIA_REQUIRE_CUDA=cuda>=12.4"}, facts); err != nil {
		fmt.Println(err)
	}
}
