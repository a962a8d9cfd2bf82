export async function startTimeline() {
  return null;
}
