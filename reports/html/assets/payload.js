// Blocks of deflated, base64-coded data that the page carries.

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

/** The inflated bytes of the block with this id, or null where the page has none. */
export async function block(id) {
  const node = document.getElementById(id);
  if (!node) return null;
  const stream = new Blob([bytesOf(node.textContent.trim())]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
