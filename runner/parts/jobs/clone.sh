# Stop at the first line that fails, and at a name that has no value.
set -eu
# End when the cluster asks for it. The first process of a container gets only the signals that it handles.
trap 'exit 143' TERM
# Begin with an empty folder, also where the pod was started before.
rm -rf "$3"
# Make a repository in it,
git init --quiet "$3"
# go there,
cd "$3"
# and name the address that the code comes from.
git remote add origin "$1"
# Fetch this commit alone, or everything from a server that gives no single commits,
{ git fetch --quiet --depth 1 origin "$2" 2>/dev/null || git fetch --quiet origin; } &
# and wait for it, because a signal reaches a shell only while it waits.
wait "$!"
# Put the files of this commit into the folder.
git -c advice.detachedHead=false checkout --quiet --detach "$2"
# What the pod runs is exactly this commit, or the pod does not start.
test "$(git rev-parse HEAD)" = "$2"
# Say so in the log.
echo "cloned $1 at $2"
