def draw_marked(text, page, folder):
    return text
