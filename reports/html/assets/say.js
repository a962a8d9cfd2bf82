// Words for those who listen, and the clipboard.

/** Announce `text` to screen readers. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

/** Copy `text`; files opened from disk may not use the clipboard interface, so there is an older way too. */
export async function copyText(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "visually-hidden";
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(`${what} copied`);
}

/** Show on a button that its work is done, for a moment. */
export function confirmOn(button, text) {
  const before = button.textContent;
  button.textContent = text;
  setTimeout(() => (button.textContent = before), 1200);
}
