/** Longest wait when frames do not come, as in a hidden window. */
const HIDDEN_WINDOW_MS = 250;

/** Runs `work` once, at the next animation frame. Returns what cancels it. */
export function nextFrame(work: () => void): () => void {
  const stop = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
  };
  const go = () => {
    stop();
    work();
  };
  const frame = requestAnimationFrame(go);
  const timer = setTimeout(go, HIDDEN_WINDOW_MS);
  return stop;
}
